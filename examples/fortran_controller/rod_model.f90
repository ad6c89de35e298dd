! The solver: a rod that is heated at one end, the heat equation in one dimension, explicit.
module rod_model
   use, intrinsic :: iso_c_binding, only: c_double
   implicit none
   integer, parameter :: cells = 20, substeps = 40, steps = 50
   real(c_double), parameter :: wanted = 1.0_c_double ! the temperature at the other end

contains

   subroutine advance(heat, power)
      real(c_double), intent(inout) :: heat(0:cells + 1)
      real(c_double), intent(in) :: power
      integer :: k
      do k = 1, substeps
         heat(0) = power
         heat(cells + 1) = heat(cells)
         heat(1:cells) = heat(1:cells) + 0.4_c_double*(heat(0:cells - 1) - 2*heat(1:cells) + heat(2:cells + 1))
      end do
   end subroutine

   function sensors(heat)
      real(c_double), intent(in) :: heat(0:cells + 1)
      real(c_double) :: sensors(3)
      sensors = [heat(1), heat(cells/2), heat(cells)]
   end function
end module rod_model
