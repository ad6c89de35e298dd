! The solver as shoal trains on it: it asks for a power, and tells what came of it.
program train_rod
   use shoal
   use rod_model
   implicit none
   real(c_double) :: heat(0:cells + 1), seen(3), low(3), high(3), power(1)
   integer :: step

   low = -5
   high = 5
   if (.not. shoal_connect(low, high, [0.0_c_double], [2.0_c_double])) stop 1
   do while (shoal_begin())
      heat = 0.1_c_double*mod(shoal_seed(), 10)
      call shoal_observe(sensors(heat))
      step = 0
      do while (shoal_action(power))
         step = step + 1
         call advance(heat, power(1))
         seen = sensors(heat)
         call shoal_result(seen, -abs(seen(3) - wanted), .false., step == steps)
      end do
   end do
end program train_rod
