-- fail: owner, fence, delay, max_attempts, retention, error, hold
local row = load(KEYS[1])
if not row then return MISSING end
if not owns(row, ARGV[1], tonumber(ARGV[2])) then return LOST end
if row.state == RELEASED or row.state == PARKED or row.state == HELD then return OK end
if row.state ~= IN_PROGRESS then return LOST end
row.changed, row.error = now, ARGV[6]
if ARGV[7] == '1' then
  row.state = HELD
elseif row.attempt >= tonumber(ARGV[4]) then
  row.state = PARKED
else
  row.state, row.cause = RELEASED, BY_FAILURE
  row.lease, row.expires = now + tonumber(ARGV[3]), now + tonumber(ARGV[5])
end
save(KEYS[1], row)
announce(KEYS[1])
return OK
