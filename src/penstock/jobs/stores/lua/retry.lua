-- Begin the next run of a job.  ARGV: its id, the token of this call.
-- The answer: what came of it, and the job as it is shown.  A call that comes twice does it once.
local job = load(ARGV[1])
if not job then
  refuse_on_replica()
  write_indexes()
  return {'missing'}
end
see_time(job)
local word = 'ok'
if ENDED[job.state] and job.state ~= 'succeeded' then
  leave_indexes(job)
  job.state, job.run, job.since, job.retried = 'waiting', job.run + 1, now, ARGV[2]
  job.ended, job.first_fence, job.attempts, job.alone, job.cancel = nil, nil, nil, nil, nil
  if is_past_deadline(job) then job.deadline = nil end
  call('HDEL', PREFIX .. 'job:' .. job.id, 'problem')
  enter_indexes(job)
  save(job)
elseif job.retried ~= ARGV[2] then
  refuse_on_replica()
  word = 'conflict'
end
write_indexes()
return {word, shown(job)}
