-- restart: the arguments of release, then its name in the audit trail, id, by. Drops the steps.
-- → {1, OK, 0} · {0, why not} · {9} too late. KEYS: record, audit trail, run [, index, functions]
-- @include runs
-- @function release
if late(ARGV[9]) then return LATE end
local answer = release()
if answer ~= OK then return {0, answer} end
for _, name in ipairs(redis.call('HKEYS', KEYS[3])) do
  if string.sub(name, 1, 1) == 's' then redis.call('HDEL', KEYS[3], name) end
end
look_after(KEYS[4], KEYS[5], ARGV[8], 0)
return {1, OK, 0}
