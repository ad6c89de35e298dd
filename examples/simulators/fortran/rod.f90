! A rod that is heated at one end and must have the same temperature everywhere at the other: the heat equation, explicit.
!     gcc -c shoal_c.c && gfortran -O2 -o rod shoal.f90 rod.f90 shoal_c.o
program rod
   use shoal
   use, intrinsic :: iso_c_binding, only: c_double
   implicit none
   integer, parameter :: cells = 20, steps = 50
   real(c_double), parameter :: wanted = 1.0_c_double
   real(c_double) :: heat(0:cells + 1), seen(3), low(3), high(3), power(1)
   integer :: step, k

   low = -5
   high = 5
   if (.not. shoal_connect(low, high, [0.0_c_double], [2.0_c_double])) stop 1
   do while (shoal_begin())
      heat = 0.1_c_double * mod(shoal_seed(), 10)
      call shoal_observe(sensors())
      step = 0
      do while (shoal_action(power))
         step = step + 1
         do k = 1, 40
            heat(0) = power(1)
            heat(cells + 1) = heat(cells)
            heat(1:cells) = heat(1:cells) + 0.4_c_double*(heat(0:cells - 1) - 2*heat(1:cells) + heat(2:cells + 1))
         end do
         seen = sensors()
         call shoal_result(seen, -abs(seen(3) - wanted), .false., step == steps)
      end do
   end do

contains

   function sensors()
      real(c_double) :: sensors(3)
      sensors = [heat(1), heat(cells/2), heat(cells)]
   end function
end program rod
