-- discard: by, why, retention. The key's dead letter was removed: only the audit trail grows.
local row = load(KEYS[1])
if not row or expired(row) then return MISSING end
return done(KEYS[2], 'discard', ARGV[1], ARGV[2], row.state, math.max(tonumber(ARGV[3]), row.expires - now))
