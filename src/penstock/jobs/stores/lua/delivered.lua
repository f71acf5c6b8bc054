-- Forget deliveries.  ARGV: for each its last fence, a colon and the id of its job.
write_though_full()
for _, member in ipairs(ARGV) do
  call('HDEL', PREFIX .. 'outbox', member)
  drop('deliveries', member)
end
write_indexes()
return 0
