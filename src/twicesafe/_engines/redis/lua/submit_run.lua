-- submit_run: owner, value, scope, fingerprint, completes, function, arguments, id, by
-- → {1, fence} it is new, or it was by this request · {0, now, record} the caller decides · {9} too late
-- KEYS: record, run [, index, functions]
-- @include runs
if late(ARGV[9]) then return LATE end
local key, run, owner, fence = KEYS[1], KEYS[2], ARGV[1], us
local row, text = load(key)
if row then
  if not expired(row) then
    if row.state ~= SUSPENDED or row.attempt > 0 or row.owner ~= owner then return {0, now, text} end
    redis.call('SET', key, text) -- so that WAIT on this connection covers this record
    return {1, row.fence}
  end
  fence = next_fence(row)
end
save(key, {
  state = SUSPENDED, cause = 0, hold = false, compact = false, attempt = 0, fence = fence, created = now,
  changed = now, lease = now, expires = 0, owner = owner, value = ARGV[2], scope = ARGV[3],
  fingerprint = ARGV[4] ~= '' and ARGV[4] or nil, error = '',
})
local fields = redis.call('HGETALL', run)
for at = 1, #fields, 2 do
  if string.sub(fields[at], 1, 1) == 's' then
    local step = unpack_step(fields[at + 1])
    if step.fence > 0 and step.fence < fence and step.created < now then
      redis.call('HDEL', run, fields[at])
    end
  end
end
redis.call('HSET', run, 'c', ARGV[5], 'f', ARGV[6], 'a', ARGV[7])
redis.call('HDEL', run, 'k')
look_after(KEYS[3], KEYS[4], ARGV[8], 0, ARGV[6])
return {1, fence}
