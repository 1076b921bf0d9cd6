insert into lane (lane, cap, updated_at) values (%(lane)s, %(cap)s, tireless_now()) on conflict do nothing
