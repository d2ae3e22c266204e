-- due_settle: id, score of its mark, delay. The write is done: look when it says. KEYS: index, functions
local mark = ARGV[1] .. '?'
redis.call('ZADD', KEYS[1], 'LT', string.format('%.3f', us / 1000 + ARGV[3]), ARGV[1])
if redis.call('ZSCORE', KEYS[1], mark) == ARGV[2] then redis.call('ZREM', KEYS[1], mark) end
return 0
