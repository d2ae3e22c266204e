-- now: → the store's time, for what is read beside it. A replica refuses it, so it answers no search.
return now
