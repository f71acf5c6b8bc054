-- Inputs as they are kept.  ARGV, for each: id, key or ''.
-- The answer, for each: the digest and the body of the job that has the key, or else the id; nil where there is none.
refuse_on_replica()
local answer = {}
for first = 1, #ARGV, 2 do
  local id, key = ARGV[first], ARGV[first + 1]
  id = key ~= '' and call('HGET', PREFIX .. 'keys', key) or id
  local found = redis.pcall('HMGET', PREFIX .. 'job:' .. id, 'digest', 'body')
  answer[#answer + 1] = not found.err and found[1] and found[2] and found or false
end
return answer
