-- Keep jobs.  ARGV: how many may wait or '', the most bytes of their inputs or '', then for each job: id, key or '',
-- digest, options in MessagePack, spec, body.
-- The answer: each job as it is shown; or the place of the first that another job conflicts with, from 1; or, where more
-- would wait than may, how many do, the bytes of their inputs, and the same of those that are new.
local FIRST, KINDS = 3, 6
local most_jobs, most_bytes = tonumber(ARGV[1]), tonumber(ARGV[2])

-- The id of the job that is the same, nil where there is none, or false where another one is there.
local function find_same(id, key, digest, ids, digests)
  local by_key = key ~= '' and (ids[key] or call('HGET', PREFIX .. 'keys', key)) or nil
  if by_key and not digests[by_key] and not call('ZSCORE', PREFIX .. 'order', by_key) then by_key = nil end
  local by_id = (digests[id] or call('ZSCORE', PREFIX .. 'order', id)) and id or nil
  local same = by_key or by_id
  if not same then return nil end
  if by_id and by_id ~= same then return false end
  if not digests[same] then
    local found = redis.pcall('HGET', PREFIX .. 'job:' .. same, 'digest')
    digests[same] = type(found) == 'string' and found or ''
  end
  return digests[same] == digest and same
end

local names, is_new, ids, digests = {}, {}, {}, {}
local new, new_bytes = 0, 0
for first = FIRST, #ARGV, KINDS do
  local id, key, digest = ARGV[first], ARGV[first + 1], ARGV[first + 2]
  local same = find_same(id, key, digest, ids, digests)
  if same == false then return (first - FIRST) / KINDS + 1 end
  if not same then
    same = id
    is_new[first] = true
    new, new_bytes = new + 1, new_bytes + #ARGV[first + 5]
    digests[id] = digest
    if key ~= '' then ids[key] = id end
  end
  names[#names + 1] = same
end

if new > 0 and (most_jobs or most_bytes) then
  see_time_of_all()
  write_indexes()
  local waiting = call('ZCARD', PREFIX .. 'state:waiting') + call('ZCARD', PREFIX .. 'state:scheduled')
  -- Records of an earlier version have no size, and somebody may have changed one: nothing waits, then nothing counts.
  if waiting == 0 then call('HDEL', META, 'waiting_bytes') end
  local bytes = tonumber(call('HGET', META, 'waiting_bytes') or 0)
  if waiting + new > (most_jobs or math.huge) or bytes + new_bytes > (most_bytes or math.huge) then
    return {waiting, bytes, new, new_bytes}
  end
end

local fence = tonumber(call('HGET', META, 'forgotten_fence') or 0)
local generation = this_generation()
for first = FIRST, #ARGV, KINDS do
  if is_new[first] then
    local id, key = ARGV[first], ARGV[first + 1]
    local options = cmsgpack.unpack(ARGV[first + 3])
    local job = {
      id = id, seq = call('HINCRBY', META, 'sequence', 1), state = 'waiting', created = now, since = now, run = 1,
      fence = fence, claims = 0, generation = generation, priority = options.priority, service = options.service,
      deadline = options.deadline, output = options.output, size = #ARGV[first + 5], host = options.host,
    }
    if options.delay > 0 then
      job.state, job.due = 'scheduled', now + options.delay
    end
    put('order', job.seq, id)
    call('SADD', PREFIX .. 'services', job.service)
    if key ~= '' then call('HSET', PREFIX .. 'keys', key, id) end
    enter_indexes(job)
    save(job, {'digest', ARGV[first + 2], 'spec', ARGV[first + 4], 'body', ARGV[first + 5], 'key', key})
  end
end

local answer = {}
for place_in_call, id in ipairs(names) do
  local job = load(id)
  see_time(job)
  answer[place_in_call] = shown(job)
end
write_indexes()
return answer
