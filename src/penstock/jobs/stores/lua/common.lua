-- What every script begins with: the records of a queue's jobs, their indexes, and their moves.
--
-- KEYS[1] is what all keys of the queue begin with.  Its part in braces puts them into one slot of a cluster.
--
--   job:ID             a hash: `live` is the record below, in MessagePack; `spec` and `body` never change; `problem`,
--                      `result` and `result_type` come with attempts; `digest` and `key` are for submissions;
--                      `h1`, `h2` ... are the attempts that have ended, numbered by the job's claims
--   order              every job by its place in the order of submission
--   state:STATE        the jobs in each state, by that place
--   waiting:SERVICE    what may be claimed, by priority and then by its turn, which is that place until the job has to
--                      rest; a leased job whose lease ran out too
--   waiting:SERVICE HOST   likewise the jobs whose inputs are at a host, and `hosts:SERVICE` has these hosts.  An earlier
--                      version has put these jobs among the others
--   since, scheduled, leased, deadlines, ended:STATE   jobs by when they began to wait, fall due, lose their lease,
--                      expire, or ended
--   keys, services     a job's id by its key; the services that jobs were submitted for
--   outbox, deliveries what is left to deliver, and from when on somebody may do it
--   claim:TOKEN        what a claim has claimed, for a while: its answer may have been lost
--   unreadable:ID      what was found where a record should be
--   meta               `schema`, `generation`, `server`, `sequence`, `forgotten_fence`, `paused`, `seconds_per_job`,
--                      `waiting_bytes`: of the inputs of those that are scheduled or waiting
--
-- A script reads first; the indexes are written at its end, by `write_indexes`.

local PREFIX = KEYS[1]
local META = PREFIX .. 'meta'
local MOST_HISTORY = 100
local MOST_MOVED = 500  -- how many jobs one script may move because their time has come
local ENDED = {succeeded = true, dead = true, cancelled = true, expired = true}
local STATES = {'scheduled', 'waiting', 'leased', 'succeeded', 'dead', 'cancelled', 'expired'}

local call = redis.call
local time = call('TIME')
local now = time[1] + time[2] / 1e6

-- -- indexes ----------------------------------------------------------------------------------------------------------

local waiting_bytes = 0  -- by how much this script changes those of `meta`
local changes = {}  -- for each index, the new score of a member, or false where it goes; the last one counts

local function put(index, score, member)
  local changed = changes[index]
  if not changed then
    changed = {}
    changes[index] = changed
  end
  changed[member] = score
end

local function drop(index, member)
  put(index, false, member)
end

local function call_in_slices(command, key, words)
  for first = 1, #words, 1000 do  -- Lua's stack has room for some thousand words
    call(command, key, unpack(words, first, math.min(first + 999, #words)))
  end
end

local function write_indexes()
  local texts = {}  -- of scores: many of a call are the same moment, and a number takes long to write
  for index, changed in pairs(changes) do
    local added, gone = {}, {}
    for member, score in pairs(changed) do
      if score then
        local text = texts[score]
        if not text then
          text = type(score) == 'number' and string.format('%.17g', score) or score
          texts[score] = text
        end
        added[#added + 1] = text
        added[#added + 1] = member
      else
        gone[#gone + 1] = member
      end
    end
    call_in_slices('ZREM', PREFIX .. index, gone)
    call_in_slices('ZADD', PREFIX .. index, added)
  end
  changes = {}
  if waiting_bytes ~= 0 then call('HINCRBY', META, 'waiting_bytes', string.format('%.0f', waiting_bytes)) end
  waiting_bytes = 0
end

-- The ids, or members, of an index whose score is at most `score`, lowest first.
local function up_to(index, score, most)
  return call('ZRANGEBYSCORE', PREFIX .. index, '-inf', score, 'LIMIT', 0, most)
end

-- A member of `waiting:SERVICE`: those of one priority are in the order of these texts.
local function place(job)
  return string.format('%016.0f:%s', job.turn or job.seq, job.id)
end

local function lane_index(service, host)
  return host and 'waiting:' .. service .. ' ' .. host or 'waiting:' .. service
end

local function enter_lane(job)
  put(lane_index(job.service, job.host), -job.priority, place(job))
  if job.host then put('hosts:' .. job.service, 0, job.host) end
end

local function leave_lane(job)
  drop(lane_index(job.service, job.host), place(job))
end

local function id_of_place(member)
  return string.sub(member, 18)
end

-- A job leaves the indexes of its state ...
local function leave_indexes(job)
  local id, state = job.id, job.state
  drop('state:' .. state, id)
  if ENDED[state] then
    drop('ended:' .. state, id)
    return
  end
  if state == 'leased' then
    drop('leased', id)
    if job.ran_out then leave_lane(job) end
    job.ran_out = nil
    return
  end
  waiting_bytes = waiting_bytes - (job.size or 0)
  if job.deadline then drop('deadlines', id) end
  if state == 'waiting' then
    leave_lane(job)
    drop('since', id)
  else
    drop('scheduled', id)
  end
end

-- ... and enters them; a leased one stands by the end of its lease, which is nowhere else.
local function enter_indexes(job, lease_end)
  local id, state = job.id, job.state
  put('state:' .. state, job.seq, id)
  if ENDED[state] then
    put('ended:' .. state, job.ended, id)
    return
  end
  if state == 'leased' then
    put('leased', lease_end, id)
    return
  end
  waiting_bytes = waiting_bytes + (job.size or 0)
  if job.deadline then put('deadlines', job.deadline, id) end
  if state == 'waiting' then
    enter_lane(job)
    put('since', job.since, id)
  else
    put('scheduled', job.due, id)
  end
end

-- Have this script write also where the server's memory is full: after a first write that needs none it may.  What gives
-- memory back, and what holders say of the jobs they have, must not be refused then; new work is.
local function write_though_full()
  call('DEL', PREFIX .. 'nothing')
end

-- Refuse on a replica, as a write does: its answer may be old, and a caller who only reads would stay with it for ever.
local function refuse_on_replica()
  local found = redis.pcall('DEL', PREFIX .. 'nothing')
  if type(found) == 'table' and string.find(found.err, 'READONLY', 1, true) then error(found.err) end
end

-- -- records ----------------------------------------------------------------------------------------------------------

local MUST = {
  seq = 'number', priority = 'number', service = 'string', created = 'number', since = 'number', run = 'number',
  fence = 'number', claims = 'number', generation = 'number',
}
local MAY = {
  deadline = 'number', due = 'number', ended = 'number', first_fence = 'number', holder = 'string', claimed = 'number',
  attempts = 'table', alone = 'boolean', cancel = 'boolean', ran_out = 'boolean', told = 'string', output = 'string',
  retried = 'string', size = 'number', turn = 'number', host = 'string',
}
local ALSO = {  -- what a state needs besides
  scheduled = {'due'}, waiting = {}, leased = {'holder', 'claimed'},
  succeeded = {'ended'}, dead = {'ended'}, cancelled = {'ended'}, expired = {'ended'},
}

local function is_readable(job, id)
  if type(job) ~= 'table' or job.id ~= id or not ALSO[job.state] then return false end
  for field, kind in pairs(MUST) do
    if type(job[field]) ~= kind then return false end
  end
  for field, value in pairs(job) do
    local kind = MAY[field]
    if kind and type(value) ~= kind then return false end
  end
  for _, field in ipairs(ALSO[job.state]) do
    if job[field] == nil then return false end
  end
  for cause, count in pairs(job.attempts or {}) do
    if type(cause) ~= 'string' or type(count) ~= 'number' then return false end
  end
  return true
end

local function save(job, extra)
  extra = extra or {}
  extra[#extra + 1] = 'live'
  extra[#extra + 1] = cmsgpack.pack(job)
  call('HSET', PREFIX .. 'job:' .. job.id, unpack(extra))
end

local function this_generation()
  return tonumber(call('HGET', META, 'generation') or 0)
end

local UNREADABLE = 'the record of this job in Redis cannot be read: somebody else has changed it'

-- The job whose record somebody else has changed: dead from here on.  What is left of the record is kept.
local function end_as_unreadable(id)
  local seq = call('ZSCORE', PREFIX .. 'order', id)
  if not seq then return nil end  -- no job of ours, or a forgotten one
  local key, kept = PREFIX .. 'job:' .. id, PREFIX .. 'unreadable:' .. id
  local kind = call('TYPE', key).ok
  local extra = {'spec', '', 'problem', cmsgpack.pack({type = '', message = UNREADABLE})}
  local key_of_job = kind == 'hash' and call('HGET', key, 'key')
  if key_of_job then
    extra[#extra + 1] = 'key'
    extra[#extra + 1] = key_of_job
  end
  if kind ~= 'none' and call('RENAMENX', key, kept) == 0 then call('UNLINK', key) end
  local job = {
    id = id, state = 'dead', seq = tonumber(seq), priority = 0, service = '', created = now, since = now, run = 1,
    fence = tonumber(call('HGET', META, 'forgotten_fence') or 0), claims = 0, ended = now,
    generation = this_generation(),
  }
  for _, state in ipairs(STATES) do drop('state:' .. state, id) end
  for state in pairs(ENDED) do drop('ended:' .. state, id) end
  for _, index in ipairs({'since', 'scheduled', 'leased', 'deadlines'}) do drop(index, id) end
  for _, service in ipairs(call('SMEMBERS', PREFIX .. 'services')) do drop('waiting:' .. service, place(job)) end
  enter_indexes(job)
  save(job, extra)
  return job
end

-- The record of a job, and `fields` of it that must be there; nil where there is no such job.
local function load(id, ...)
  local found = redis.pcall('HMGET', PREFIX .. 'job:' .. id, 'live', ...)
  if found.err then return end_as_unreadable(id) end
  for _, value in ipairs(found) do
    if not value then return end_as_unreadable(id) end
  end
  local read, job = pcall(cmsgpack.unpack, found[1])
  if not read or not is_readable(job, id) then return end_as_unreadable(id) end
  return job, found[2], found[3]
end

-- -- moves ------------------------------------------------------------------------------------------------------------

local function leave_delivery(job)
  if not job.output or not job.first_fence then return end
  local written = job.state == 'succeeded' and job.fence or 0
  local member = string.format('%.0f:%s', job.fence, job.id)
  call('HSET', PREFIX .. 'outbox', member, cmsgpack.pack({job.id, job.output, written, job.first_fence, job.fence}))
  put('deliveries', now, member)
end

-- Move a job to `state`, and write it with the fields `extra`.
local function move(job, state, extra)
  leave_indexes(job)
  job.state = state
  if state == 'scheduled' then job.turn = call('HINCRBY', META, 'sequence', 1) end
  if ENDED[state] then
    job.ended = now
    job.due = nil
    leave_delivery(job)
  end
  enter_indexes(job)
  save(job, extra)
end

-- End the attempt of a leased job by `cause`, and move the job to `state`.
local function end_attempt(job, state, cause, extra)
  extra = extra or {}
  extra[#extra + 1] = 'h' .. job.claims
  extra[#extra + 1] = cmsgpack.pack({job.run, job.fence, job.holder, job.claimed, now, cause})
  if job.claims > MOST_HISTORY then call('HDEL', PREFIX .. 'job:' .. job.id, 'h' .. (job.claims - MOST_HISTORY)) end
  job.holder, job.claimed = nil, nil
  move(job, state, extra)
end

local function is_past_deadline(job)
  return job.deadline ~= nil and now >= job.deadline
end

-- Do with a job what time does: it falls due, or expires, where nobody holds it.
local function see_time(job)
  if job.state == 'scheduled' and now >= job.due then
    leave_indexes(job)
    job.state, job.since, job.due = 'waiting', job.due, nil
    enter_indexes(job)
    save(job)
  end
  if (job.state == 'scheduled' or job.state == 'waiting') and is_past_deadline(job) then move(job, 'expired') end
end

local function lease_ran_out(job)
  if job.state ~= 'leased' then return false end
  return job.ran_out or tonumber(call('ZSCORE', PREFIX .. 'leased', job.id) or 0) <= now
end

-- Do what time does with the jobs whose time has come; true where there may be more of them.
local function see_time_of_all()
  local most = 0
  for _, index in ipairs({'scheduled', 'deadlines'}) do
    local ids = up_to(index, now, MOST_MOVED)
    most = math.max(most, #ids)
    for _, id in ipairs(ids) do
      local job = load(id)
      if job then see_time(job) end
      if not job or job.state == 'leased' then drop(index, id) end
    end
  end
  local ids = up_to('leased', now, MOST_MOVED)
  for _, id in ipairs(ids) do
    -- It stays leased, and may be claimed: it stands among the others.
    local job = load(id)
    drop('leased', id)
    if job and job.state == 'leased' then
      enter_lane(job)
      job.ran_out = true
      save(job)
    end
  end
  return math.max(most, #ids) == MOST_MOVED
end

-- -- answers ----------------------------------------------------------------------------------------------------------

-- A job as it is shown: its record, its options, its problem or '', and its attempts that have ended.
local function shown(job)
  local first = math.max(1, job.claims - MOST_HISTORY + 1)
  local fields = {'spec', 'problem'}
  for number = first, job.claims do fields[#fields + 1] = 'h' .. number end
  local found = call('HMGET', PREFIX .. 'job:' .. job.id, unpack(fields))
  local answer = {cmsgpack.pack(job), found[1] or '', found[2] or ''}
  for number = 3, #found do
    if found[number] then answer[#answer + 1] = found[number] end
  end
  return answer
end

local function forget(id)
  local job = load(id)
  if not job then return end
  leave_indexes(job)
  if not ENDED[job.state] then leave_delivery(job) end
  local key = call('HGET', PREFIX .. 'job:' .. id, 'key')
  if key and call('HGET', PREFIX .. 'keys', key) == id then call('HDEL', PREFIX .. 'keys', key) end
  drop('order', id)
  if job.fence > tonumber(call('HGET', META, 'forgotten_fence') or 0) then
    call('HSET', META, 'forgotten_fence', string.format('%.0f', job.fence))
  end
  call('UNLINK', PREFIX .. 'job:' .. id, PREFIX .. 'unreadable:' .. id)
end
