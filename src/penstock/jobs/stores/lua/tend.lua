-- Do what time does, and forget what ended long ago.  ARGV: seconds for each job or '', then a state and for how many
-- seconds its jobs are kept, in pairs.  The answer: 1 where there may be more to do.
write_though_full()
local MOST_FORGOTTEN = 500
if ARGV[1] ~= '' then call('HSET', META, 'seconds_per_job', ARGV[1]) end
local more = see_time_of_all()
write_indexes()
local count = 0
for number = 2, #ARGV, 2 do
  local oldest = string.format('(%.17g', now - ARGV[number + 1])
  local ids = up_to('ended:' .. ARGV[number], oldest, MOST_FORGOTTEN - count)
  for _, id in ipairs(ids) do
    forget(id)
    drop('ended:' .. ARGV[number], id)
  end
  count = count + #ids
  if count >= MOST_FORGOTTEN then break end
end
write_indexes()
return (more or count >= MOST_FORGOTTEN) and 1 or 0
