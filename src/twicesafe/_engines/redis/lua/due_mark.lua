-- due_mark: id, delay, function → {1, now, score}. In a Cluster, before a run is written: look at it after
-- `delay` in any case. The write must come before that, or it is refused. KEYS: index, functions
local mark = ARGV[1] .. '?'
redis.call('ZADD', KEYS[1], string.format('%.3f', us / 1000 + ARGV[2]), mark)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], ARGV[1], ARGV[3]) end
return {1, now, redis.call('ZSCORE', KEYS[1], mark)}
