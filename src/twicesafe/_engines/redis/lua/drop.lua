-- drop: remove the steps of a run whose record is gone or over → 1 removed, 0 not. KEYS: record, run
local row = load(KEYS[1])
if row and not expired(row) and row.state ~= FORGOTTEN then return 0 end
local keep = redis.call('HGET', KEYS[2], 'k')
if keep and tonumber(keep) > now then return 0 end
return redis.call('DEL', KEYS[2])
