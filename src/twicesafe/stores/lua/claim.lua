-- claim: owner, lease, max_attempts, hold, value, scope [, fingerprint]
-- Who runs? → {1, fence, attempt, cause} won · {2} held · {3} parked · {0, now, record} look for yourself
local key, owner, lease, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local fingerprint = ARGV[7]

local text = redis.call('GET', key)
if text then
  -- The duplicate of finished work, in a hurry.
  local head = string.byte(text)
  if (head == 16 + COMPLETED or head == 16 + FAILED) and struct.unpack('<I6', text, 24) > now then
    return {0, now, text}
  end
end

local function start(fence, attempt, cause, created, fingerprint, problem)
  save(key, {
    state = IN_PROGRESS, cause = cause, hold = ARGV[4] == '1', attempt = attempt, fence = fence,
    created = created, changed = now, lease = now + lease, owner = owner, value = ARGV[5],
    scope = ARGV[6], fingerprint = fingerprint, error = problem,
  })
  return {1, fence, attempt, cause}
end

if not text then return start(us, 1, 0, now, fingerprint, '') end
local old = parse(text)
if expired(old) then
  local cause = old.state == RELEASED and old.cause or BY_RETENTION
  return start(next_fence(old), 1, cause, now, fingerprint, '')
end
local mine = old.owner == owner
local differs = old.fingerprint and fingerprint and old.fingerprint ~= fingerprint
local lapsed = old.state == IN_PROGRESS and not mine and old.lease <= now
local rested = old.state == RELEASED and old.lease <= now
if (differs and not mine) or not (lapsed or rested) then return {0, now, text} end

if lapsed and old.hold or old.attempt >= most then
  local held = lapsed and old.hold
  old.state, old.changed = held and HELD or PARKED, now
  save(key, old)
  announce(key)
  return {held and 2 or 3}
end
return start(next_fence(old), old.attempt + 1, lapsed and BY_LEASE or old.cause, old.created,
  fingerprint or old.fingerprint, old.error)
