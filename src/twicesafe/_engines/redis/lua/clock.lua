-- The store's time, read once per script: microseconds for fences, milliseconds for the rest (P5).
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
