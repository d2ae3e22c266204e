-- audit: at, action, by, why, before, retention. Writes an audit entry later than its act: see `done`.
write_audit(KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]))
return OK
