/* A PETSc program that knows nothing of finelu or Python, and uses finelu by its options alone.
 *
 *   -Laplace(u) + 10 du/dx = 1 on an m x m grid of the unit square, u = 0 on the boundary.
 *
 *   mpicc petsc_app.c -o petsc_app -I$PETSC_DIR/include -L$PETSC_DIR/lib -lpetsc -Wl,-rpath,$PETSC_DIR/lib
 *   mpiexec -n 2 ./petsc_app -m 100 -pc_type asm -sub_pc_type ilu
 *   mpiexec -n 2 ./petsc_app -m 100 -pc_type asm -python `which python` -sub_pc_type python \
 *       -sub_pc_python_type finelu.interop.petsc.PC -sub_finelu_recipe ilut -sub_finelu_drop_tol 1e-3
 */
#include <petscksp.h>

int main(int argc, char **argv)
{
  Mat                A;
  Vec                b, x;
  KSP                ksp;
  KSPConvergedReason reason;
  PetscInt           m = 60, first, last, iterations;
  PetscReal          h, norm;

  PetscCall(PetscInitialize(&argc, &argv, NULL, NULL));
  PetscCall(PetscOptionsGetInt(NULL, NULL, "-m", &m, NULL));
  h = 1.0 / (m + 1);

  PetscCall(MatCreateAIJ(PETSC_COMM_WORLD, PETSC_DECIDE, PETSC_DECIDE, m * m, m * m, 5, NULL, 2, NULL, &A));
  PetscCall(MatGetOwnershipRange(A, &first, &last));
  for (PetscInt row = first; row < last; row++) {
    const PetscInt i = row % m, j = row / m;
    if (i > 0) PetscCall(MatSetValue(A, row, row - 1, -1 - 10 * h, INSERT_VALUES));
    if (i < m - 1) PetscCall(MatSetValue(A, row, row + 1, -1, INSERT_VALUES));
    if (j > 0) PetscCall(MatSetValue(A, row, row - m, -1, INSERT_VALUES));
    if (j < m - 1) PetscCall(MatSetValue(A, row, row + m, -1, INSERT_VALUES));
    PetscCall(MatSetValue(A, row, row, 4 + 10 * h, INSERT_VALUES));
  }
  PetscCall(MatAssemblyBegin(A, MAT_FINAL_ASSEMBLY));
  PetscCall(MatAssemblyEnd(A, MAT_FINAL_ASSEMBLY));
  PetscCall(MatCreateVecs(A, &x, &b));
  PetscCall(VecSet(b, h * h));

  PetscCall(KSPCreate(PETSC_COMM_WORLD, &ksp));
  PetscCall(KSPSetOperators(ksp, A, A));
  PetscCall(KSPSetFromOptions(ksp));
  PetscCall(KSPSolve(ksp, b, x));

  PetscCall(KSPGetConvergedReason(ksp, &reason));
  PetscCall(KSPGetIterationNumber(ksp, &iterations));
  PetscCall(VecNorm(x, NORM_INFINITY, &norm));
  PetscCall(PetscPrintf(PETSC_COMM_WORLD, "%s after %d iterations, largest u %.6f\n", KSPConvergedReasons[reason], (int)iterations, (double)norm));
  PetscCall(KSPDestroy(&ksp));
  PetscCall(VecDestroy(&x));
  PetscCall(VecDestroy(&b));
  PetscCall(MatDestroy(&A));
  PetscCall(PetscFinalize());
  return reason > 0 ? 0 : 1;
}
