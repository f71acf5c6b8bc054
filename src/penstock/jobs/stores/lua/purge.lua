-- Forget jobs.  ARGV: the least age in seconds, how many at most, their states.  The answer: how many they were.
write_though_full()
see_time_of_all()
write_indexes()
local youngest, left = now - ARGV[1], tonumber(ARGV[2])
local count = 0
for number = 3, #ARGV do
  local state = ARGV[number]
  local ids = ENDED[state] and up_to('ended:' .. state, youngest, left - count)
    or call('ZRANGE', PREFIX .. 'state:' .. state, 0, left - count - 1)
  for _, id in ipairs(ids) do
    local job = load(id)
    if not job then
      drop('state:' .. state, id)
    elseif job.state == state then
      if not ENDED[state] and job.created > youngest then break end  -- all behind it are younger
      forget(id)
      count = count + 1
    end
  end
  if count >= left then break end
end
write_indexes()
return count
