-- complete: owner, fence, retention, state, error [, result]
local key, owner, fence, retention = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local text = redis.call('GET', key)
if not text then return 2 end

-- The common case, fast: a record in progress without an error gets a new head and a result.
local head, flags, attempt, known, created = struct.unpack('<BBI2I7I6', text)
if head == 16 and flags < 128 and known == fence and ARGV[5] == ''
  and string.sub(text, 31, 30 + string.byte(text, 30)) == owner then
  local result = ARGV[6]
  redis.call('SET', key, struct.pack('<BBI2I7I6I6I6', 16 + ARGV[4], flags + (result and 16 or 0),
    attempt, fence, created, now, now + retention) .. string.sub(text, 30) .. (result or ''),
    'PX', string.format('%.0f', retention + grace(fence)))
  announce(key)
  return 0
end

-- The same for a compact one.
if head == 32 and flags < 128 and ARGV[5] == '' then
  local attempt, known, _, _, holder = struct.unpack('<BI7I4I5c16', text, 3)
  local after = now - math.floor(known / 1000)
  if known == fence and holder == owner and after >= 0 and after < 4294967296
    and retention < 1099511627776 then
    local result = ARGV[6]
    redis.call('SET', key, struct.pack('<BBBI7I4I5', 32 + ARGV[4], flags + (result and 16 or 0), attempt,
      fence, after, retention) .. string.sub(text, 20) .. (result or ''),
      'PX', string.format('%.0f', retention + grace(fence)))
    announce(key)
    return 0
  end
end

-- @record

local row = parse(text)
if not owns(row, owner, fence) then return LOST end
if row.state == COMPLETED or row.state == FAILED then
  redis.call('SET', key, text, 'KEEPTTL') -- so that WAIT on this connection covers this record
  return OK
end
if row.state ~= IN_PROGRESS and row.state ~= HELD and row.state ~= PARKED then return LOST end
row.state, row.error, row.result = tonumber(ARGV[4]), ARGV[5], ARGV[6]
row.changed, row.lease, row.expires = now, 0, now + retention
save(key, row)
announce(key)
return OK
