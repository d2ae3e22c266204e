-- The record: one string per key, read and written by every script. The Python side reads the same
-- layout in _engines/redis/record_layout.py. All numbers are little-endian.
--
--   1  version * 16 + state            7  fence              6  created_at     6  changed_at
--   1  cause + flags below             2  attempt
--   6  lease_until  (in progress, released, suspended)      6  expires_at  (completed, failed, released, forgotten)
--   1+n owner   1+n value   2+n scope*   1+n fingerprint*   2+n error*   the rest: result*
--
-- * only if its flag is set. _core/lifecycle.py sets the fields that a state does not have to 0.
--
-- Version 2 is compact, for a record that its first claim began and that is in progress, completed or failed.
-- Such a record was created in the millisecond of its fence. All others have version 1.
--
--   1  version * 16 + state   1  cause + flags   1  attempt   7  fence   4  changed_at, after its creation
--   5  lease_until or expires_at, after changed_at   16 owner   1+n value   and the rest as above

local IN_PROGRESS, COMPLETED, FAILED, RELEASED, HELD, PARKED, FORGOTTEN, SUSPENDED = 0, 1, 2, 3, 4, 5, 6, 7
local BY_FAILURE, BY_LEASE, BY_RETENTION, BY_OPERATOR, BY_RESUMING = 1, 2, 3, 4, 6
local HOLD, RESULT, FINGERPRINT, SCOPE, ERROR = 8, 16, 32, 64, 128
local OK, LOST, MISSING, REFUSED = 0, 1, 2, 3
local NEVER_FINISHED = 'never finished' -- as in _core/transitions.py

local AUDIT_KEPT, AUDIT_MOST = 90 * 86400000, 100

local function leased(state) return state == IN_PROGRESS or state == RELEASED or state == SUSPENDED end
local function ends(state)
  return state == COMPLETED or state == FAILED or state == RELEASED or state == FORGOTTEN
end

local function parse(text)
  local head, flags, at = struct.unpack('<BB', text)
  local version = math.floor(head / 16)
  if version ~= 1 and version ~= 2 then error({err = 'VERSION the record has layout ' .. version}) end
  local row = {
    state = head % 16, cause = flags % 8, hold = bit.band(flags, HOLD) ~= 0, lease = 0, expires = 0,
    error = '', scope = '', compact = version == 2,
  }
  if row.state > (row.compact and FAILED or SUSPENDED) then error({err = 'CORRUPT no such state'}) end
  if row.compact then
    local after, span
    row.attempt, row.fence, after, span, row.owner, at = struct.unpack('<BI7I4I5c16', text, at)
    row.created = math.floor(row.fence / 1000)
    row.changed = row.created + after
    row[row.state == IN_PROGRESS and 'lease' or 'expires'] = row.changed + span
  else
    row.attempt, row.fence, row.created, row.changed, at = struct.unpack('<I2I7I6I6', text, at)
    if leased(row.state) then row.lease, at = struct.unpack('<I6', text, at) end
    if ends(row.state) then row.expires, at = struct.unpack('<I6', text, at) end
    row.owner, at = struct.unpack('<Bc0', text, at)
  end
  row.value, at = struct.unpack('<Bc0', text, at)
  if bit.band(flags, SCOPE) ~= 0 then row.scope, at = struct.unpack('<I2c0', text, at) end
  if bit.band(flags, FINGERPRINT) ~= 0 then row.fingerprint, at = struct.unpack('<Bc0', text, at) end
  if bit.band(flags, ERROR) ~= 0 then row.error, at = struct.unpack('<I2c0', text, at) end
  row.size = at - 1 -- of all but the result
  if bit.band(flags, RESULT) ~= 0 then
    row.result = string.sub(text, at)
  elseif at ~= #text + 1 then
    error({err = 'CORRUPT the record is longer than it says'})
  end
  return row
end

local function load(key)
  local text = redis.call('GET', key)
  if text then return parse(text), text end
end

local function expired(row)
  return row.expires > 0 and row.expires <= now
end

-- The record's times as spans, if its first claim began it and they fit in version 2.
local function spans(row)
  local after = row.changed - row.created
  local span = (row.state == IN_PROGRESS and row.lease or row.expires) - row.changed
  if row.compact and row.state <= FAILED and row.created == math.floor(row.fence / 1000)
    and #row.owner == 16 and row.attempt < 256
    and after >= 0 and after < 4294967296 and span >= 0 and span < 1099511627776 then
    return after, span
  end
end

local function save(key, row)
  local flags = row.cause
  local parts = {'', struct.pack('<Bc0', #row.value, row.value)}
  if row.hold then flags = flags + HOLD end
  if row.scope ~= '' then
    flags = flags + SCOPE
    parts[#parts + 1] = struct.pack('<I2c0', #row.scope, row.scope)
  end
  if row.fingerprint then
    flags = flags + FINGERPRINT
    parts[#parts + 1] = struct.pack('<Bc0', #row.fingerprint, row.fingerprint)
  end
  if row.error ~= '' then
    flags = flags + ERROR
    parts[#parts + 1] = struct.pack('<I2c0', #row.error, row.error)
  end
  if row.result then
    flags = flags + RESULT
    parts[#parts + 1] = row.result
  end
  local after, span = spans(row)
  if after then
    parts[1] = struct.pack('<BBBI7I4I5c16', 32 + row.state, flags, row.attempt, row.fence, after, span,
      row.owner)
  else
    parts[1] = struct.pack('<BBI2I7I6I6', 16 + row.state, flags, math.min(row.attempt, 65535),
        row.fence, row.created, row.changed)
      .. (leased(row.state) and struct.pack('<I6', row.lease) or '')
      .. (ends(row.state) and struct.pack('<I6', row.expires) or '')
      .. struct.pack('<Bc0', #row.owner, row.owner)
  end
  local text = table.concat(parts)
  if ends(row.state) then
    redis.call('SET', key, text, 'PX', string.format('%.0f', row.expires - now + grace(row.fence)))
  else
    redis.call('SET', key, text)
  end
end

-- A fence is the microsecond of its claim, so it is above the fences of a deleted record (P3).
local function next_fence(row)
  return math.max(row.fence + 1, us)
end

local function owns(row, owner, fence)
  return row.owner == owner and row.fence == fence
end

-- An operator's decision is about an earlier run, or about a stuck one that goes on.
local function moved_on(row, fence, unless_running)
  return fence ~= '' and row.fence ~= tonumber(fence)
    or unless_running == '1' and row.state == IN_PROGRESS and row.lease > now
end

local function write_audit(key, at, action, by, why, before, retention)
  redis.call('RPUSH', key, cmsgpack.pack({at, action, by, why, before}))
  redis.call('LTRIM', key, -AUDIT_MOST, -1)
  redis.call('PEXPIRE', key, string.format('%.0f', retention + AUDIT_KEPT))
end

-- An operator's act is done: write the audit entry. While a slot moves to another node, a script cannot
-- use a key that exists and one that does not. Then `trail` is nil, and the caller writes it (audit.lua).
local function done(trail, action, by, why, before, retention)
  if not trail then return {1, now, before, string.format('%.0f', retention)} end
  write_audit(trail, now, action, by, why, before, retention)
  return OK
end
