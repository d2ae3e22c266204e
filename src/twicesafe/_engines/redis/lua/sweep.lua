-- sweep: how. Delete this record if its retention is over; with 'look', only check. → 1 over, 0 not
local row = load(KEYS[1])
if not row or not expired(row) then return 0 end
if ARGV[1] ~= 'look' then redis.call('DEL', KEYS[1], KEYS[2]) end
return 1
