-- resolve: by, why, retention, fence (empty: any), unless running [, result]
local row = load(KEYS[1])
if not row or expired(row) then return MISSING end
local before = row.state
if moved_on(row, ARGV[4], ARGV[5]) then return LOST end
if before == COMPLETED or before == FORGOTTEN then return REFUSED end
row.state, row.changed, row.fence, row.owner = COMPLETED, now, next_fence(row), ''
row.result, row.lease = ARGV[6], 0
row.expires = math.max(row.expires, now + tonumber(ARGV[3]))
save(KEYS[1], row)
announce(KEYS[1])
return done(KEYS[2], 'resolve', ARGV[1], ARGV[2], before, row.expires - now)
