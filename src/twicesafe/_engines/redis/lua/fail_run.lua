-- fail_run: the arguments of fail, then id, by → {1, OK, delay} · {0, why not} · {9} too late. KEYS: record, run [, index, functions]
-- @include runs
-- @function fail
if late(ARGV[9]) then return LATE end
local answer, delay = fail(), tonumber(ARGV[3])
if answer ~= OK then return {0, answer} end
look_after(KEYS[3], KEYS[4], ARGV[8], delay)
return {1, OK, delay}
