-- Cancel a job, or have its holder do so.  ARGV: its id.  The answer: what came of it, and the job as it is shown.
write_though_full()
local job = load(ARGV[1], 'spec')
if not job then
  write_indexes()
  return {'missing'}
end
see_time(job)
local word = 'ok'
if ENDED[job.state] then
  if job.state ~= 'cancelled' then word = 'conflict' end
elseif lease_ran_out(job) then
  end_attempt(job, 'cancelled', 'cancelled')
elseif job.state == 'leased' then
  job.cancel = true
  save(job)
else
  move(job, 'cancelled')
end
write_indexes()
return {word, shown(job)}
