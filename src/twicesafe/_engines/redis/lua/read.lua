-- read: → {now} or {now, record}
local text = redis.call('GET', KEYS[1])
if text then return {now, text} end
return {now}
