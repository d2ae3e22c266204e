-- complete: owner, fence, retention, state, error [, result]
local row = load(KEYS[1])
if not row then return MISSING end
if not owns(row, ARGV[1], tonumber(ARGV[2])) then return LOST end
if row.state == COMPLETED or row.state == FAILED then return OK end
if row.state ~= IN_PROGRESS and row.state ~= HELD and row.state ~= PARKED then return LOST end
row.state, row.error, row.result = tonumber(ARGV[4]), ARGV[5], ARGV[6]
row.changed, row.lease, row.expires = now, 0, now + tonumber(ARGV[3])
save(KEYS[1], row)
announce(KEYS[1])
return OK
