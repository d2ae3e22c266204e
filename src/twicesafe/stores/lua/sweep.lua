-- sweep: remove this record if its retention is over. → 1 removed, 0 not
local row = load(KEYS[1])
if not row or not expired(row) then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
