-- abandon: owner, retention. Without a fence: the caller may not know it, because its claim was cut off.
local row = load(KEYS[1])
if not row then return MISSING end
if row.owner ~= ARGV[1] or row.state ~= IN_PROGRESS then return LOST end
row.state, row.changed, row.attempt = RELEASED, now, row.attempt - 1
row.lease, row.expires = now, now + tonumber(ARGV[2])
save(KEYS[1], row)
announce(KEYS[1])
return OK
