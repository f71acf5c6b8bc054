-- Lend out deliveries.  ARGV: how many, for how many seconds.  The answer: each in MessagePack.
local answer = {}
for _, member in ipairs(up_to('deliveries', now, ARGV[1])) do
  local packed = call('HGET', PREFIX .. 'outbox', member)
  if packed then
    put('deliveries', now + ARGV[2], member)
    answer[#answer + 1] = packed
  else
    drop('deliveries', member)
  end
end
write_indexes()
return answer
