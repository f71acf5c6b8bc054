-- Jobs as they are now.  ARGV: ids.  The answer, for each: the job as it is shown, or nil.
write_though_full()
local answer = {}
for number, id in ipairs(ARGV) do
  local job = load(id, 'spec')
  if job then see_time(job) end
  answer[number] = job and shown(job) or false
end
write_indexes()
return answer
