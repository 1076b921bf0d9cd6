delete from forge_limit where limited_until < tireless_now() - interval '1 day'
