-- awaits: is there still something to wait for? Asked after the ear is at the door.
local row = load(KEYS[1])
if row and not expired(row) and leased(row.state) and row.lease > now then return 1 end
return 0
