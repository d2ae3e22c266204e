-- look: → {now, record without its result or '', function, arguments, completes, keep until (nil: none)}
-- KEYS: record, run
local row, text = load(KEYS[1])
local run = redis.call('HMGET', KEYS[2], 'f', 'a', 'c', 'k')
return {now, row and string.sub(text, 1, row.size) or '', run[1], run[2], run[3], run[4]}
