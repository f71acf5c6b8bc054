-- Have leases end later.  ARGV: the lease in seconds, then id and fence for each.
-- The answer, for each: 'ok', 'cancel' or 'lost'.
write_though_full()
local lease_end = now + ARGV[1]
local answer = {}
for number = 2, #ARGV, 2 do
  local job = load(ARGV[number])
  local word = 'lost'
  if job and job.state == 'leased' and job.fence == tonumber(ARGV[number + 1]) then
    if job.ran_out then
      leave_indexes(job)
      enter_indexes(job, lease_end)
      save(job)
    else
      put('leased', lease_end, job.id)
    end
    word = job.cancel and 'cancel' or 'ok'
  end
  answer[#answer + 1] = word
end
write_indexes()
return answer
