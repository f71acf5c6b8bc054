-- What lies in the queue.  The answer: a count for each of STATES, the oldest wait, how many deliveries are left, seconds
-- for each job, '1' if paused.
refuse_on_replica()
local answer = {}
for number, state in ipairs(STATES) do answer[number] = call('ZCARD', PREFIX .. 'state:' .. state) end
local due = call('ZCOUNT', PREFIX .. 'scheduled', '-inf', now)  -- nobody has looked at them since they fell due
answer[1], answer[2] = answer[1] - due, answer[2] + due
local since = now
for _, index in ipairs({'since', 'scheduled'}) do
  since = math.min(since, tonumber(call('ZRANGE', PREFIX .. index, 0, 0, 'WITHSCORES')[2] or now))
end
local found = call('HMGET', META, 'seconds_per_job', 'paused')
answer[#answer + 1] = string.format('%.17g', now - since)
answer[#answer + 1] = call('ZCARD', PREFIX .. 'deliveries')
answer[#answer + 1] = found[1] or '0'
answer[#answer + 1] = found[2] or ''
return answer
