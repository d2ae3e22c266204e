-- peek: → {now} or {now, record without its result}. For scans over all keys: results may be large.
local row, text = load(KEYS[1])
if row then return {now, string.sub(text, 1, row.size)} end
return {now}
