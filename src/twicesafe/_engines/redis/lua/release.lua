-- release: by, why, retention, fence (empty: any), unless running, force
local row = load(KEYS[1])
if not row or expired(row) then return MISSING end
local before = row.state
if moved_on(row, ARGV[4], ARGV[5]) then return LOST end
if before == FORGOTTEN or (before == COMPLETED and ARGV[6] ~= '1') then return REFUSED end
row.state, row.changed, row.fence, row.owner, row.attempt = RELEASED, now, next_fence(row), '', 0
row.cause, row.result = BY_OPERATOR, nil
row.lease, row.expires = now, now + tonumber(ARGV[3])
save(KEYS[1], row)
announce(KEYS[1])
return done(KEYS[2], ARGV[7] or 'release', ARGV[1], ARGV[2], before, tonumber(ARGV[3]))
