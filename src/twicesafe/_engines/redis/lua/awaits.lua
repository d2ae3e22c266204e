-- awaits: is the key still in progress? A waiter asks this after it has subscribed.
local row = load(KEYS[1])
if row and not expired(row) and leased(row.state) and row.lease > now then return 1 end
return 0
