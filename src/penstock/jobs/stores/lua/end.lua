-- End attempts.  ARGV, for each: in MessagePack id, fence, state, cause or nil, whether it counts, whether the job is
-- alone from now on, rest in seconds, the result's media type, failed tries to store the output; then the problem or
-- '', and the result.
-- The answer, for each: 'ok' or 'lost'.
write_though_full()

local function count(job, cause, n)
  job.attempts = job.attempts or {}
  job.attempts[cause] = (job.attempts[cause] or 0) + n
end

local function settle(job, ending, problem, result)
  local _, _, state, cause, counts, alone, rest, result_type, transfers = unpack(ending, 1, 9)
  job.told = state
  if counts and cause then count(job, cause, 1) end
  if transfers > 0 then count(job, 'transfer', transfers) end
  if alone then job.alone = true end
  if job.cancel and not ENDED[state] then state = 'cancelled' end
  local extra = {}
  if state == 'succeeded' then
    extra = {'result', result, 'result_type', result_type}
    if job.run > 1 or job.claims > 1 then call('HDEL', PREFIX .. 'job:' .. job.id, 'problem') end
  elseif problem ~= '' then
    extra = {'problem', problem}
  end
  if state == 'scheduled' then job.due = now + rest end
  -- Its only attempt was at fault from the beginning, and wrote nothing: see `wrote_nothing` in jobs/store.py.
  if state == 'dead' and cause == 'input' and job.fence == job.first_fence then job.first_fence = nil end
  end_attempt(job, state, ENDED[state] and state or cause or state, extra)
end

local answer = {}
for number = 1, #ARGV, 3 do
  local ending = cmsgpack.unpack(ARGV[number])
  local job = load(ending[1])
  local word = 'lost'
  if job and job.fence == ending[2] then
    if job.state == 'leased' then
      settle(job, ending, ARGV[number + 1], ARGV[number + 2])
      word = 'ok'
    elseif job.told == ending[3] then
      word = 'ok'
    end
  end
  answer[#answer + 1] = word
end
write_indexes()
return answer
