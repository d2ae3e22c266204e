-- forget: by, why, retention, fence (empty: any)
local row = load(KEYS[1])
if not row or expired(row) then return MISSING end
local before = row.state
if before == FORGOTTEN then return OK end
if ARGV[4] ~= '' and row.fence ~= tonumber(ARGV[4]) then return LOST end
if before == IN_PROGRESS or before == SUSPENDED then return REFUSED end
row.state, row.changed, row.fence, row.owner = FORGOTTEN, now, next_fence(row), ''
row.value, row.scope, row.fingerprint, row.result, row.error = '', '', nil, nil, ''
row.lease, row.expires = 0, math.max(row.expires, now + tonumber(ARGV[3]))
save(KEYS[1], row)
announce(KEYS[1])
return done(KEYS[2], 'forget', ARGV[1], ARGV[2], before, row.expires - now)
