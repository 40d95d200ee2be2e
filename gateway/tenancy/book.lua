-- The arithmetic of meters.py and book.py, done in one step for all gateways.
-- KEYS: one a meter. A rate is a number, places a sorted set (lease -> lapses at), a quota a number
-- with KEYS[i] .. ':held' (lease -> units) and ':until' (lease -> lapses at) beside it.
-- ARGV: verb, lease, now in microseconds (0: ours), lease in microseconds, then four a meter:
-- kind, limit, period or end of the window in microseconds, units (take) or units|used (settle).
local verb, lease, now, lease_us = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function whole(number) return string.format('%.0f', number) end
local function divide(a, b) return (a - a % b) / b end
local function number(key) return tonumber(redis.call('GET', key) or '0') end
local function forget(key, until_us)
  redis.call('PEXPIREAT', key, whole(divide(until_us, 1000) + 1000))
end

local function lapse_quota(key)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', key .. ':until', '-inf', whole(now))) do
    redis.call('HDEL', key .. ':held', gone)
    redis.call('ZREM', key .. ':until', gone)
  end
end

local function committed(key)
  local total = number(key)
  for _, units in ipairs(redis.call('HVALS', key .. ':held')) do total = total + tonumber(units) end
  return total
end

local function level(key) return math.max(0, number(key) - now) end

local function argument(i, n) return ARGV[4 + (i - 1) * 4 + n] end

if verb == 'renew' then
  for i, key in ipairs(KEYS) do
    if argument(i, 1) == 'places' then
      redis.call('ZADD', key, 'XX', whole(now + lease_us), lease)
      forget(key, now + lease_us)
    elseif argument(i, 1) == 'quota' then
      redis.call('ZADD', key .. ':until', 'XX', whole(now + lease_us), lease)
    end
  end
  return {}
end

if verb == 'settle' then
  for i, key in ipairs(KEYS) do
    local kind, limit, period = argument(i, 1), tonumber(argument(i, 2)), tonumber(argument(i, 3))
    local held, used = string.match(argument(i, 4), '(%d+)|(%d+)')
    held, used = tonumber(held), tonumber(used)
    if kind == 'rate' then
      local full_at = math.max(number(key), now)
        + divide(used * period, limit) - divide(held * period, limit)
      redis.call('SET', key, whole(full_at))
      forget(key, math.max(full_at, now))
    elseif kind == 'places' then
      redis.call('ZREM', key, lease)
    else
      redis.call('HDEL', key .. ':held', lease)
      redis.call('ZREM', key .. ':until', lease)
      redis.call('SET', key, whole(number(key) + used))
      forget(key, period)
    end
  end
  return {}
end

-- take: the longest wait refuses, and then nothing is taken
local worst, worst_wait = 0, 0
for i, key in ipairs(KEYS) do
  local kind, limit, period = argument(i, 1), tonumber(argument(i, 2)), tonumber(argument(i, 3))
  local units, wait = tonumber(argument(i, 4)), 0
  if kind == 'rate' then
    wait = math.max(0, level(key) + divide(units * period, limit) - period)
  elseif kind == 'places' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', whole(now))
    if redis.call('ZCARD', key) + units > limit then wait = 1000000 end
  else
    lapse_quota(key)
    if committed(key) + units > limit then wait = math.max(1, period - now) end
  end
  if wait > worst_wait then worst, worst_wait = i, wait end
end

local answer = {tostring(worst), whole(worst_wait)}
for i, key in ipairs(KEYS) do
  local kind, limit, period = argument(i, 1), tonumber(argument(i, 2)), tonumber(argument(i, 3))
  local units, remaining, reset = tonumber(argument(i, 4)), 0, 0
  if kind == 'rate' then
    if worst == 0 then
      local full_at = math.max(number(key), now) + divide(units * period, limit)
      redis.call('SET', key, whole(full_at))
      forget(key, full_at)
    end
    reset = level(key)
    remaining = math.max(0, divide((period - reset + 1) * limit - 1, period))
  elseif kind == 'places' then
    if worst == 0 then
      redis.call('ZADD', key, whole(now + lease_us), lease)
      forget(key, now + lease_us)
    end
    remaining = limit - redis.call('ZCARD', key)
  else
    if worst == 0 then
      redis.call('HSET', key .. ':held', lease, whole(units))
      redis.call('ZADD', key .. ':until', whole(now + lease_us), lease)
      forget(key .. ':held', period)
      forget(key .. ':until', period)
    end
    remaining = math.max(0, limit - committed(key))
    reset = math.max(0, period - now)
  end
  answer[#answer + 1] = whole(remaining)
  answer[#answer + 1] = whole(reset)
end
return answer
