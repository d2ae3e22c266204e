-- claim: owner, lease, max_attempts, hold (1) and compact (2), value, scope [, fingerprint]
-- → {1, fence, attempt, cause} won · {2} held · {3} parked · {0, now, record} no write: the caller decides
local key, owner, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local value, scope, fingerprint = ARGV[5], ARGV[6], ARGV[7]
if fingerprint == '' then fingerprint = nil end
local hold, compact = ARGV[4] % 2 == 1, ARGV[4] + 0 > 1 and #ARGV[1] == 16

-- The two common cases, fast: the first delivery, and the duplicate of completed work.
local text = redis.call('GET', key)
if not text then
  local flags = (hold and 8 or 0) + (fingerprint and 32 or 0) + (scope ~= '' and 64 or 0)
  local start
  if compact and lease < 1099511627776 then
    start = struct.pack('<BBBI7I4I5c16Bc0', 32, flags, 1, us, 0, lease, owner, #value, value)
  else
    start = struct.pack('<BBI2I7I6I6I6Bc0Bc0', 16, flags, 1, us, now, now, now + lease,
      #owner, owner, #value, value)
  end
  redis.call('SET', key, start
    .. (scope ~= '' and struct.pack('<I2c0', #scope, scope) or '')
    .. (fingerprint and struct.pack('<Bc0', #fingerprint, fingerprint) or ''))
  return {1, us, 1, 0}
end
local head = string.byte(text)
if head == 33 or head == 34 then
  local fence, after, span = struct.unpack('<I7I4I5', text, 4)
  if math.floor(fence / 1000) + after + span > now then return {0, now, text} end
elseif (head == 17 or head == 18) and struct.unpack('<I6', text, 24) > now then
  return {0, now, text}
end

-- @record

local function start(fence, attempt, cause, created, fingerprint, problem)
  save(key, {
    state = IN_PROGRESS, cause = cause, hold = hold, compact = compact, attempt = attempt, fence = fence,
    created = created, changed = now, lease = now + lease, owner = owner, value = value,
    scope = scope, fingerprint = fingerprint, error = problem,
  })
  return {1, fence, attempt, cause}
end

local old = parse(text)
if expired(old) then
  local cause = old.state == RELEASED and old.cause or BY_RETENTION
  return start(next_fence(old), 1, cause, now, fingerprint, '')
end
local mine = old.owner == owner
if mine and old.state == IN_PROGRESS then
  -- The same claim again (P2). Written again, so that WAIT on this connection covers this record.
  redis.call('SET', key, text)
  return {1, old.fence, old.attempt, old.cause}
end
local differs = old.fingerprint and fingerprint and old.fingerprint ~= fingerprint
local lapsed = old.state == IN_PROGRESS and old.lease <= now
local rested = (old.state == RELEASED or old.state == SUSPENDED) and old.lease <= now
if (differs and not mine) or not (lapsed or rested) then return {0, now, text} end

-- A claim made before its handler could start is not counted.
local counted = old.attempt - (lapsed and string.sub(old.owner, 1, 5) == 'ahead' and 1 or 0)
local held = lapsed and old.hold
if held or counted >= tonumber(ARGV[3]) then
  old.state, old.changed = held and HELD or PARKED, now
  if not held and old.error == '' then old.error = NEVER_FINISHED end
  save(key, old)
  announce(key)
  return {held and 2 or 3}
end
return start(next_fence(old), counted + 1, lapsed and BY_LEASE or old.cause, old.created,
  fingerprint or old.fingerprint, old.error)
