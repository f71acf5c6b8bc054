-- End jobs whose options cannot be read.  ARGV: their ids.
for _, id in ipairs(ARGV) do end_as_unreadable(id) end
write_indexes()
return 0
