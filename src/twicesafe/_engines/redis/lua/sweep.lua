-- sweep: how. Remove this record if its retention is over; 'look': only tell. → 1 it is over, 0 not
local row = load(KEYS[1])
if not row or not expired(row) then return 0 end
if ARGV[1] ~= 'look' then redis.call('DEL', KEYS[1], KEYS[2]) end
return 1
