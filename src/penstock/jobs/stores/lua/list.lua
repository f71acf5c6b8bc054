-- Jobs in the order of their submission.  ARGV: a state or '', how many, the id behind which they begin or '', or the
-- place in the order behind which they begin.  The answer: the jobs as they are shown, or nil where that job is not.
write_though_full()
local place_before = ARGV[4]
if ARGV[3] ~= '' then
  place_before = call('ZSCORE', PREFIX .. 'order', ARGV[3])
  if not place_before then return false end
end
see_time_of_all()
write_indexes()
local index = ARGV[1] == '' and 'order' or 'state:' .. ARGV[1]
local ids = call('ZRANGEBYSCORE', PREFIX .. index, '(' .. place_before, '+inf', 'LIMIT', 0, ARGV[2])
local answer = {}
for _, id in ipairs(ids) do
  local job = load(id, 'spec')
  if job then
    see_time(job)
    answer[#answer + 1] = shown(job)
  else
    drop(index, id)
  end
end
write_indexes()
return answer
