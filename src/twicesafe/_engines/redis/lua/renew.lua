-- renew: owner, fence, lease
local row = load(KEYS[1])
if not row then return MISSING end
if not owns(row, ARGV[1], tonumber(ARGV[2])) or row.state ~= IN_PROGRESS then return LOST end
row.lease = math.max(row.lease, now + tonumber(ARGV[3]))
save(KEYS[1], row)
return OK
