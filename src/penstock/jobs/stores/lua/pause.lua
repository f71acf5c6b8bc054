-- Let nothing be claimed, or let jobs be claimed again.  ARGV: '1' or ''.
if ARGV[1] == '' then
  call('HDEL', META, 'paused')
else
  call('HSET', META, 'paused', ARGV[1])
end
return 0
