-- rewrite: state, before, after
local row = load(KEYS[1])
if not row or expired(row) then return MISSING end
if row.state ~= tonumber(ARGV[1]) then return LOST end
if row.result == ARGV[3] then return OK end -- only the answer was lost
if row.result ~= ARGV[2] then return LOST end
row.result = ARGV[3]
save(KEYS[1], row)
return OK
