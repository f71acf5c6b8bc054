-- Lease jobs.  ARGV: the holder, the lease in seconds, the token of this call, the `lost` attempt that is the last, the
-- problem of a lost attempt; in MessagePack what the holder has given up (fences by id, or '' for nothing), and the rooms,
-- each as services, how many jobs, how many bytes, how many of a host or 0, and how many are held already by their hosts.
-- The answer, for each job: its record, spec and body.  A call that comes twice gets the same jobs twice.
local MOST_PASSED_OVER = 200  -- jobs of a room that end, instead of being handed out, in one call
local RESTART_GAP = 8         -- how many fences of a job a server may have forgotten with its last second

local holder, lease = ARGV[1], tonumber(ARGV[2])
local token, most_lost, lost_problem = PREFIX .. 'claim:' .. ARGV[3], tonumber(ARGV[4]), ARGV[5]
local given_up = ARGV[6] ~= '' and cmsgpack.unpack(ARGV[6]) or {}
local MOST_HOSTS = 500         -- of how many hosts jobs are looked at in one call; of more, so many drawn by lot

local rooms, here, elsewhere = {}, {}, {}  -- the rooms in their order, and by service those of each kind
for number, word in ipairs(cmsgpack.unpack(ARGV[7])) do
  local services, limit, most_bytes, of_host, at_hosts = unpack(word, 1, 5)
  local room = {
    services = services, limit = limit, most_bytes = most_bytes, of_host = of_host, at_hosts = at_hosts, jobs = 0, size = 0,
  }
  rooms[number] = room
  for _, service in ipairs(services) do (of_host > 0 and elsewhere or here)[service] = room end
end

local answer, claimed = {}, {}

local function fits(room, body)
  return room.jobs < room.limit and (room.jobs == 0 or room.size + #body <= room.most_bytes)
end

local function is_full(room, host)
  return host and (room.at_hosts[host] or 0) >= room.of_host
end

local function hand_out(room, job, packed, spec, body)
  answer[#answer + 1] = packed
  answer[#answer + 1] = spec
  answer[#answer + 1] = body
  room.jobs, room.size = room.jobs + 1, room.size + #body
  if job.host then room.at_hosts[job.host] = (room.at_hosts[job.host] or 0) + 1 end
end

-- A job that this holder has already: its lease begins anew.
local function hand_out_again(room, job, spec, body)
  leave_indexes(job)
  enter_indexes(job, now + lease)
  save(job)
  hand_out(room, job, cmsgpack.pack(job), spec, body)
end

-- The jobs of this same call, whose answer was lost; those for which there is no room now are given back.
local function claim_again(given)
  for _, hold in ipairs(given) do
    local job, spec, body = load(hold[1], 'spec', 'body')
    if job and job.state == 'leased' and job.fence == hold[2] then
      local room = (job.host and elsewhere or here)[job.service]
      if room and fits(room, body) and not is_full(room, job.host) then
        hand_out_again(room, job, spec, body)
      else
        end_attempt(job, job.cancel and 'cancelled' or 'waiting', job.cancel and 'cancelled' or 'released')
      end
    end
  end
end

-- What may be claimed of one service and host, a page at a time; the indexes are written later, so that places do not
-- move.
local function lane_of(service, host, most)
  return {index = lane_index(service, host), host = host, page = {}, at = 1, offset = 0, most = math.min(most, 100)}
end

local function lanes_of(room)
  local lanes = {}
  for _, service in ipairs(room.services) do
    if room.of_host == 0 then
      lanes[#lanes + 1] = lane_of(service, nil, room.limit)
    else
      local index = 'hosts:' .. service
      for _, host in ipairs(call('ZRANDMEMBER', PREFIX .. index, MOST_HOSTS)) do
        if call('EXISTS', PREFIX .. lane_index(service, host)) == 0 then
          drop(index, host)
        elseif not is_full(room, host) then
          lanes[#lanes + 1] = lane_of(service, host, room.limit)
        end
      end
    end
  end
  return lanes
end

local function head_of(lane)
  if lane.at > #lane.page and not lane.empty then
    lane.page = call('ZRANGE', PREFIX .. lane.index, lane.offset, lane.offset + lane.most - 1, 'WITHSCORES')
    lane.at, lane.offset = 1, lane.offset + #lane.page / 2
    lane.empty = #lane.page == 0
  end
  return lane.page[lane.at], tonumber(lane.page[lane.at + 1])
end

-- The lane whose first job comes before those of the others.
local function best_of(lanes, room)
  local best, best_score, best_member
  for _, lane in ipairs(lanes) do
    local member, score = head_of(lane)
    if member and not is_full(room, lane.host) and (not best or score < best_score or (score == best_score and member < best_member)) then
      best, best_score, best_member = lane, score, member
    end
  end
  return best, best_member
end

-- Whether the job stays with this holder, although its lease has run out.
local function stays(job)
  return job.holder == holder and given_up[job.id] ~= job.fence and not job.cancel
end

-- Settle the attempt whose lease ran out: unless that ends the run, the job waits then.
local function lose(job)
  if job.cancel then
    end_attempt(job, 'cancelled', 'cancelled')
  elseif is_past_deadline(job) then
    end_attempt(job, 'expired', 'expired')
  else
    job.attempts = job.attempts or {}
    job.attempts.lost = (job.attempts.lost or 0) + 1
    job.alone = true
    local is_last = job.attempts.lost >= most_lost
    end_attempt(job, is_last and 'dead' or 'waiting', is_last and 'dead' or 'lost', {'problem', lost_problem})
  end
end

local generation = this_generation()

local function lease_out(room, job, spec, body)
  leave_indexes(job)
  job.fence = job.fence + (job.generation == generation and 1 or RESTART_GAP)
  job.state, job.holder, job.claimed, job.claims = 'leased', holder, now, job.claims + 1
  job.first_fence, job.generation, job.told = job.first_fence or job.fence, generation, nil
  enter_indexes(job, now + lease)
  local packed = cmsgpack.pack(job)
  call('HSET', PREFIX .. 'job:' .. job.id, 'live', packed)
  claimed[#claimed + 1] = {job.id, job.fence}
  hand_out(room, job, packed, spec, body)
end

-- Lease the first jobs that fit into a room.
local function fill(room)
  local lanes = room.limit > 0 and lanes_of(room) or {}
  for _ = 1, room.limit + MOST_PASSED_OVER do
    local lane, member = best_of(lanes, room)
    if not lane or room.jobs == room.limit then break end
    lane.at = lane.at + 2
    local job, spec, body = load(id_of_place(member), 'spec', 'body')
    if job and spec and not fits(room, body) then break end
    if job then see_time(job) end
    local ran_out = job and lease_ran_out(job)
    if ran_out and not stays(job) then lose(job) end
    if ran_out and job.state == 'leased' then
      hand_out_again(room, job, spec, body)
    elseif job and job.state == 'waiting' and place(job) == member then
      lease_out(room, job, spec, body)
    else
      drop(lane.index, member)
    end
  end
end

local given = call('GET', token)
if given then
  claim_again(cmsgpack.unpack(given))
elseif not call('HGET', META, 'paused') then
  see_time_of_all()
  write_indexes()
  for _, room in ipairs(rooms) do fill(room) end
  if #claimed > 0 then
    call('SET', token, cmsgpack.pack(claimed), 'PX', string.format('%.0f', math.max(1, math.min(lease, 86400) * 1000)))
  end
end
if #claimed == 0 then refuse_on_replica() end
write_indexes()
return answer
